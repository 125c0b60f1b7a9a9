"""What the broker offers of pending messages: how they are named, and requests about them."""
