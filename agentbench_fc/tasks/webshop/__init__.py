"""WebShop: buy the right product. The original's pages and rewards, without its JVM and its HTML."""
