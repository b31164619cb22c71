"""Steps of a start on its host. The supervisor takes them; `mpbroker doctor` checks that it could."""
