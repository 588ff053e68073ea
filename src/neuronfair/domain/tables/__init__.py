"""Tables in files and in memory, and the data sets of the catalog."""
