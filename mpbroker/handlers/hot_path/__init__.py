"""The handler's native turn: common Produce and Fetch requests without Python."""
