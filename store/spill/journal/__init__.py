"""The journal that acceptance writes, and the segments that it is made of."""
