"""The desk of pending messages: looks them up, counts, forecasts and changes them."""
