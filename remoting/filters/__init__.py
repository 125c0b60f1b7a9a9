"""What a subscription selects: tags, or the SQL92 filter made of tokens, values and nodes."""
