"""The embedded name server, routes, and registration with other name servers."""
