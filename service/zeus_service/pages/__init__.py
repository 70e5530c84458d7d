"""The pages that a person looks at, and what they ask for while they are open."""

from apiflask import APIBlueprint

pages = APIBlueprint(
    "pages",
    __name__,
    enable_openapi=False,  # for browsers, not for programs
    static_folder="static",
    static_url_path="/assets",
    template_folder="templates",
)
