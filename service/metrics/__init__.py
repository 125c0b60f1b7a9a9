"""What an instance tells Prometheus; needs the extra ``http``, and is loaded only if it is asked for."""
