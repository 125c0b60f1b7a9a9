"""Who may do what: access rules, accounts, and the table of request codes."""
