"""HTTP as every process of ours serves it, in a thread of its own. Needs the extra ``http``."""
