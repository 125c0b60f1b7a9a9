"""The spill store: where messages wait that are not due yet. Start reading at `store.spill.spill_store`."""
