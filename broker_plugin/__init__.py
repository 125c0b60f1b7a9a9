"""Arbitrary-time delay as a plug-in for any broker that hosts `store.put.plugin_api.Plugin`."""
