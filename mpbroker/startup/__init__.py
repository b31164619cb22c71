"""Steps of a start that depend on the host. The supervisor takes them; `mpbroker doctor` can check them."""
