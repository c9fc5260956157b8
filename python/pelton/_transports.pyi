# Private: nothing in it is for others to use.
