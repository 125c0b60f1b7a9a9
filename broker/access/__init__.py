"""Access control: accounts, their rules, and the right that each request code needs."""
