"""What people are told about their bookings: by mail with a calendar entry, and by a signed webhook."""
