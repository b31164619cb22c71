"""Steps of a start that use the host. The supervisor takes them; `mpbroker doctor` checks them beforehand."""
