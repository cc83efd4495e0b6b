"""Do these models compute the same function, and if not, where do they part?"""
