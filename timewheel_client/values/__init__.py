"""Values of the client's interface: times, properties, ids, routes, errors."""
