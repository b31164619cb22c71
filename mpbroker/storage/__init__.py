"""The files of the log, for all who read them: names, formats, the layout of a directory, a reader."""
