"""The files of the log, for all of their readers: names, formats, the layout of a directory, a reader."""
