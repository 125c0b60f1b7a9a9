"""Arbitrary-time delay as a plug-in for any broker that hosts `store.hook.Plugin`."""
