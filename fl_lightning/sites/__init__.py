"""A federation of real sites, connected by Flower: what runs at a site, and the server's connection to all of them."""
