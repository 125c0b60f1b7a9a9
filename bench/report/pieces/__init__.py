"""The page's HTML, and the sections that the lateness page is put together from."""
