"""Functions that answer the methods of Compute Engine, one module for each kind of resource."""
