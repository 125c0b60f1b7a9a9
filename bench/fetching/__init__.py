"""Things that are fetched or built once and kept: jars, clients, servers, the generator's library."""
