"""The service towards the cluster: requests, the progress topic, membership of the group."""
