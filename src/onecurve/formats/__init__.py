"""Files of data: how they are listed, indexed and read, each format in a file of its own."""
