"""The HTTP face: routes, guards and answers. Each route parses, calls one service method, renders."""
