"""The rules of the table, by kind of operation; importing the modules registers them."""
