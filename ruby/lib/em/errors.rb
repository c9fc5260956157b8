# frozen_string_literal: true

module EventMachine
  # A file to be sent or watched does not exist.
  class FileNotFoundException < Exception; end # rubocop:disable Lint/InheritException
  # Arguments of start_tls contradict each other.
  class BadParams < Exception; end # rubocop:disable Lint/InheritException
  class BadCertParams < BadParams; end
  class BadPrivateKeyParams < BadParams; end

  # From the number of a system error to its class. The reason that `unbind` gets.
  ERRNOS = Errno.constants.sort.each_with_object(Hash.new(:unknown)) do |name, hash|
    constant = Errno.const_get(name)
    next unless constant.is_a?(Class) && constant < SystemCallError

    # Two names may share a number; the one that Ruby uses itself wins.
    hash[constant::Errno] = SystemCallError.new(constant::Errno).class
  end
end
