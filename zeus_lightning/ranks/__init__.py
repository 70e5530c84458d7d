"""The ranks of a distributed run: rank zero calls the service, and all ranks get its answer."""
