"""POP: messages that are handed out for a time, and come again unless they are acknowledged in it."""
