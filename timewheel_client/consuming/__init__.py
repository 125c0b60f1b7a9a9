"""Reading, acknowledging and sending back messages."""
