"""Values that users give and get: times, properties, ids, routes, errors."""
