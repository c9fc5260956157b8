# Private.
