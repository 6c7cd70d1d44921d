"""Settings as plain frozen data, without the models that validate them."""
