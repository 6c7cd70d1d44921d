"""Settings as plain frozen data, without the models that read them."""
