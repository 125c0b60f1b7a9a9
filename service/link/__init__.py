"""The service's side of the cluster: requests, the progress topic, membership of the group."""
