"""`mpbroker doctor`: what a broker needs of its host, checked one by one."""
