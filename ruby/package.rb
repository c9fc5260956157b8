# frozen_string_literal: true

# Makes the gem, with the sources of the reactor in it, in an empty or new directory:
#
#   ruby package.rb DIRECTORY
#
# `gem install DIRECTORY/pelton-eventmachine-*.gem` then needs no repository, only cargo.

require 'fileutils'

# The crates that the native library consists of. The order does not matter.
CRATES = %w[pelton-openssl pelton-os pelton-ruby pelton-sync pelton].freeze

directory = File.expand_path(ARGV.fetch(0))
root = File.expand_path('..', __dir__)
source = "#{directory}/source"
vendor = "#{source}/vendor"
FileUtils.rm_rf(directory)
FileUtils.mkdir_p("#{vendor}/crates")

FileUtils.cp_r(%w[lib README.md pelton-eventmachine.gemspec].map { |name| "#{__dir__}/#{name}" }, source)
FileUtils.mkdir_p("#{source}/ext")
FileUtils.cp("#{__dir__}/ext/extconf.rb", "#{source}/ext")
FileUtils.cp(%w[LICENSE-APACHE LICENSE-MIT].map { |name| "#{root}/#{name}" }, source)

# Removes sections of a manifest. Tests are not part of the gem.
def without(manifest, *sections)
  manifest.split(/^(?=\[)/).reject { |section| sections.any? { |name| section.start_with?(name) } }.join
end

CRATES.each do |crate|
  to = "#{vendor}/crates/#{crate}"
  FileUtils.mkdir_p(to)
  FileUtils.cp_r(Dir["#{root}/crates/#{crate}/{src,build.rs}"], to)
  File.write("#{to}/Cargo.toml", without(File.read("#{root}/crates/#{crate}/Cargo.toml"), '[dev-dependencies]', '[[test]]', '[[bench]]'))
end

members = CRATES.map { |crate| %("crates/#{crate}") }.join(', ')
workspace = without(File.read("#{root}/Cargo.toml"), '[profile.dev]', '[profile.test')
workspace.sub!(/^members = \[.*?\]/m, "members = [#{members}]") or abort 'no members in Cargo.toml'
workspace.gsub!(/^(default-members|exclude) = \[.*?\]\n/m, '')
File.write("#{vendor}/Cargo.toml", workspace)
FileUtils.cp("#{root}/Cargo.lock", vendor)
# Drops what only other crates need.
system('cargo', 'update', '--quiet', '--workspace', '--offline', chdir: vendor) or abort 'cannot reduce Cargo.lock'

Dir.chdir(source) { system('gem', 'build', '--quiet', 'pelton-eventmachine.gemspec') or abort 'gem build failed' }
FileUtils.mv(Dir["#{source}/*.gem"], directory)
