"""AWS, as moto emulates it, with durable state and checked signatures."""
