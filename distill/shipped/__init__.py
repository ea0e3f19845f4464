"""Students that come with the package, distilled from the shipped teachers, and their cards."""
