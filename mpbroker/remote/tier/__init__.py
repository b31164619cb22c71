"""The tier process: copies sealed segments to the object store, removes them there and downloads windows."""
