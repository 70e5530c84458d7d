"""`python -m zeus_service` is `zeus-service`."""

from zeus_service.cli import main

main(prog_name="zeus-service")
