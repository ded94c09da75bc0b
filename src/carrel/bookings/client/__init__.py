"""How other components ask the booking service, and what they remember of its answers.

Reading order:

    status        the answer: has this person an active booking; the JSON of our own route
    interface     what components ask, and of whom
    http_client   asks over HTTP: Carrel's own route, or any service that speaks MAIA's JSON
    cache         asks no more often than needed, and goes on with the last answer while the service is down
"""
