"""The desk of pending messages: they are looked at, counted, forecast and changed here."""
