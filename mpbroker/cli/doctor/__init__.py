"""`mpbroker doctor`: checks of this host, one module for each subject."""
