# frozen_string_literal: true

# Downloads the source package of Debian's EventMachine, and unpacks its tests into the directory that is named:
#
#   ruby fetch_suite.rb DIRECTORY
#
# Only the tests are unpacked. They are run, and never become part of this repository.

require 'fileutils'

VERSION = '1.3~pre20220315-df4ab006'
FILE = "ruby-eventmachine_#{VERSION}.orig.tar.xz"
SERVERS = %w[http://deb.debian.org/debian http://snapshot.debian.org/archive/debian/20240101T000000Z].freeze

directory = File.expand_path(ARGV.fetch(0))
exit if File.exist?("#{directory}/tests/em_test_helper.rb")

FileUtils.mkdir_p(directory)
archive = "#{directory}/#{FILE}"
fetched = SERVERS.any? do |server|
  url = "#{server}/pool/main/r/ruby-eventmachine/#{FILE}"
  system('curl', '--fail', '--silent', '--show-error', '--location', '--retry', '3', '--max-time', '120', '--output', archive, url)
end
abort "cannot download #{FILE}" unless fetched
unpacked = system('tar', '--extract', '--xz', '--file', archive, '--directory', directory, '--strip-components=1', '--wildcards', '*/tests')
abort "cannot unpack #{archive}" unless unpacked && File.exist?("#{directory}/tests/em_test_helper.rb")
