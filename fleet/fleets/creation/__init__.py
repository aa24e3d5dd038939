"""Steps of the creation of a fleet: consent to its price, and instances that could not be prepared."""
